"""The equations of the paper written out as loops over (image, view, class): what the tests compare with."""

import math

import torch


def log_softmax(row):
    top = max(float(v.detach()) for v in row)
    total = sum((value - top).exp() for value in row)
    return [value - top - total.log() for value in row]


def cross_entropy(logits, target, weight=None, smoothing=0.0):
    """logits: list of rows of 0-d tensors. target: list of [(label, share), ...] for each row."""
    numerator, denominator = 0.0, 0.0
    for row, parents in zip(logits, target, strict=True):
        log_prob = log_softmax(row)
        count = len(row)
        weights = [1.0] * count if weight is None else [float(w) for w in weight]
        for label, share in parents:
            smooth = sum(weights[c] * -log_prob[c] for c in range(count)) / count
            hard = weights[label] * -log_prob[label]
            numerator = numerator + share * ((1 - smoothing) * hard + smoothing * smooth)
            denominator = denominator + share * weights[label]
    return numerator / denominator


def rows(tensor):
    return [list(row.unbind()) for row in tensor.unbind()]


def parents(target):
    """A hard (B,) target or an (a, b, lam) one as lists of (label, share)."""
    if isinstance(target, torch.Tensor):
        return [[(int(y), 1.0)] for y in target]
    lam = target.lam.expand(target.a.shape)
    return [
        [(int(a), float(x)), (int(b), 1 - float(x))] for a, b, x in zip(target.a, target.b, lam, strict=True)
    ]


def joint_targets(target, num_views):
    """For image b and view j: label y*M + j with the image's shares."""
    return [
        [(y * num_views + j, share) for y, share in image]
        for image in parents(target)
        for j in range(num_views)
    ]


def class_targets(target, num_views):
    return [image for image in parents(target) for _ in range(num_views)]


def per_label(weight, num_views):
    return None if weight is None else [weight[c] for c in range(len(weight)) for _ in range(num_views)]


def sla_loss(joint_logits, target, num_views, weight=None, smoothing=0.0):
    """1/M sum_j CE over all N*M labels, mean over the images."""
    labels = joint_targets(target, num_views)
    return cross_entropy(rows(joint_logits), labels, per_label(weight, num_views), smoothing)


def single(joint_logits, num_views):
    """Block 0 of the rows that are view 0."""
    count = joint_logits.shape[1] // num_views
    first = joint_logits[::num_views]
    return torch.stack([torch.stack([row[i * num_views] for i in range(count)]) for row in first])


def aggregated(joint_logits, num_views, mean="logits"):
    count, batch = joint_logits.shape[1] // num_views, joint_logits.shape[0] // num_views
    output = []
    for b in range(batch):
        scores = []
        for i in range(count):
            terms = []
            for j in range(num_views):
                row = joint_logits[b * num_views + j]
                own = [row[k * num_views + j] for k in range(count)]
                if mean == "logits":
                    terms.append(own[i])
                elif mean == "probabilities":
                    terms.append(log_softmax(own)[i].exp())
                else:
                    everything = log_softmax(list(row))
                    terms.append(sum(everything[i * num_views + view].exp() for view in range(num_views)))
            average = sum(terms) / num_views
            scores.append(average if mean == "logits" else average.log())
        output.append(torch.stack(scores))
    return torch.stack(output)


def distillation(joint_logits, student_logits, num_views, temperature=1.0):
    """KL(teacher || student) * T^2, mean over images."""
    teacher = aggregated(joint_logits.detach(), num_views)
    total = 0.0
    for teacher_row, student_row in zip(teacher, student_logits, strict=True):
        p = [float(v.exp()) for v in log_softmax([v / temperature for v in teacher_row])]
        q = log_softmax([v / temperature for v in student_row])
        total = total + sum(p[i] * (math.log(p[i]) - q[i]) for i in range(len(p)))
    return total / len(student_logits) * temperature**2
