import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

from refusals import refused
from sla.tasks.fewshot.head import one_hot
from sla.tasks.fewshot.heads import HEADS, create_head
from sla.tasks.fewshot.loss import smoothed_cross_entropy
from sla.tasks.fewshot.svm import interior_point, solve_svm


def make_episodes(count=3, way=4, shot=2, query=5, width=7, seed=0, dtype=torch.float64):
    stream = torch.Generator().manual_seed(seed)
    support = torch.randn(count, way * shot, width, generator=stream, dtype=dtype)
    asked = torch.randn(count, query, width, generator=stream, dtype=dtype)
    targets = torch.stack(
        [torch.randperm(way * shot, generator=stream) % way for _ in range(count)]
    )  # shuffled: nothing may rely on the order
    return support, targets, asked


def test_prototypes_are_means_and_logits_are_distances_by_hand():
    support, targets, query = make_episodes()
    head = create_head("protonet", scale=2.5).double()
    logits = head(support, targets, query, 4).detach()
    for e in range(3):
        for q in range(5):
            for label in range(4):
                members = [support[e, s] for s in range(8) if targets[e, s] == label]
                mean = sum(members) / len(members)
                wanted = -2.5 * float(((query[e, q] - mean) ** 2).sum()) / 7
                assert float(logits[e, q, label]) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("width", [7, 30])  # more images than features, and fewer
def test_ridge_is_the_explicit_solution(width):
    support, targets, query = make_episodes(width=width, shot=4)
    logits = create_head("ridge", scale=1.5).double()(support, targets, query, 4)
    for e in range(3):
        x, y = support[e].numpy(), np.eye(4)[targets[e].numpy()]
        alpha = 2 * np.linalg.inv(x @ x.T + 50 * np.eye(len(x))) @ y
        wanted = 1.5 * query[e].numpy() @ x.T @ alpha
        np.testing.assert_allclose(logits[e].detach().numpy(), wanted, rtol=1e-6)


def test_ridge_is_twice_that_of_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    support, targets, query = make_episodes(width=30, shot=4)
    logits = create_head("ridge", regularization=3.0).double()(support, targets, query, 4)
    for e in range(3):
        fitted = linear_model.Ridge(alpha=3.0, fit_intercept=False)
        fitted.fit(support[e].numpy(), np.eye(4)[targets[e].numpy()])
        np.testing.assert_allclose(logits[e].detach(), 2 * fitted.predict(query[e].numpy()), rtol=1e-6)


def test_r2d2_is_ridge_with_a_column_of_ones_scaled_and_shifted():
    linear_model = pytest.importorskip("sklearn.linear_model")
    support, targets, query = make_episodes(shot=4)
    head = create_head("r2d2", regularization=3.0, scale=1.7).double()
    nn.init.constant_(head.bias, 0.3)
    logits = head(support, targets, query, 4)
    for e in range(3):
        fitted = linear_model.Ridge(alpha=3.0, fit_intercept=False)
        with_ones = [np.hstack([x[e].numpy(), np.ones((x.shape[1], 1))]) for x in (support, query)]
        fitted.fit(with_ones[0], np.eye(4)[targets[e].numpy()])
        # the logarithm of the regularization is kept in single precision
        np.testing.assert_allclose(logits[e].detach(), 1.7 * fitted.predict(with_ones[1]) + 0.3, rtol=1e-5)
    logits.sum().backward()
    assert all(float(getattr(head, name).grad.abs()) > 0 for name in ("scale", "bias", "log_regularization"))


def project(point, most):
    """The nearest rows with entries up to `most` and sum 0, by bisection on what is added to a row."""
    low = torch.full((*point.shape[:2], 1), -1e3, dtype=point.dtype)
    high = -low
    for _ in range(60):
        middle = (low + high) / 2
        above = torch.minimum(point + middle, most).sum(-1, keepdim=True) > 0
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return torch.minimum(point + low, most)


@pytest.mark.parametrize("size", [0.1, 1.0, 5.0])  # of the features: from no wall reached to nearly all
def test_svm_is_the_optimum_that_a_long_projected_gradient_finds(size):
    support, targets, _ = make_episodes(shot=3, width=12)
    labels, kernel = one_hot(targets, 4, support), size**2 * support @ support.mT
    found = solve_svm(kernel, labels, c=0.1, iterations=25)
    hessian = kernel + torch.eye(12, dtype=torch.float64)
    steepest = float(torch.linalg.eigvalsh(hessian).max())
    momentum = (steepest**0.5 - 1) / (steepest**0.5 + 1)  # the least curvature is at least 1
    old = ahead = torch.zeros_like(labels)
    for _ in range(500):
        new = project(ahead - (hessian @ ahead - labels) / steepest, 0.1 * labels)
        ahead, old = new + momentum * (new - old), new
    assert float((found - old).abs().max()) < 1e-7
    assert float((found - 0.1 * labels).max()) < 1e-12
    assert float(found.sum(2).abs().max()) < 1e-12


def test_svm_is_the_optimum_of_scipy():
    support, targets, _ = make_episodes(count=1, way=3, shot=2, width=5, seed=3)
    labels = one_hot(targets, 3, support)[0].numpy()
    hessian = (support[0] @ support[0].T).numpy() + np.eye(6)

    def cost(flat):
        a = flat.reshape(6, 3)
        return 0.5 * np.sum(a * (hessian @ a)) - np.sum(labels * a)

    def slope(flat):
        return (hessian @ flat.reshape(6, 3) - labels).ravel()

    sums = {"type": "eq", "fun": lambda flat: flat.reshape(6, 3).sum(1)}
    bounds = [(None, 0.1 * value) for value in labels.ravel()]
    best = minimize(
        cost, np.zeros(18), jac=slope, bounds=bounds, constraints=sums, method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )  # fmt: skip
    found = solve_svm(support @ support.mT, one_hot(targets, 3, support), c=0.1)[0].numpy()
    assert cost(found.ravel()) <= best.fun + 1e-10
    np.testing.assert_allclose(found, best.x.reshape(6, 3), atol=1e-5)


def test_svm_gradient_is_that_of_finite_differences():
    support, targets, _ = make_episodes(count=2, way=3, shot=2, width=5)
    labels, point = one_hot(targets, 3, support), (0.5 * support).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: solve_svm(x @ x.mT, labels, 0.1, 30), point, atol=1e-5)


@pytest.mark.parametrize("scale", [0, -5, float("inf"), float("nan"), "a"])
def test_a_scale_is_a_number_above_0(scale):
    refused(r"scale of logits must be above 0|its options are numbers", create_head, "ridge", scale=scale)


@pytest.mark.parametrize(
    "options", [{"iterations": 2.5}, {"c": float("nan")}, {"c": 0}, {"test_iterations": 0}]
)
def test_svm_refuses_what_is_no_number_of_iterations_and_no_bound(options):
    refused("svm needs c above 0 and at least 1 iteration", create_head, "svm", **options)


def test_svm_iterations_are_as_many_as_asked_in_training_and_test():
    support, targets, query = make_episodes()
    labels, kernel = one_hot(targets, 4, support), support @ support.mT
    head = create_head("svm").double()
    for training, iterations in ((True, 15), (False, 3)):
        head.train(training)
        a, _ = interior_point(kernel + torch.eye(8, dtype=torch.float64), labels, 0.1, iterations)
        wanted = query @ support.mT @ a
        torch.testing.assert_close(head(support, targets, query, 4), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", HEADS)
def test_episodes_at_once_are_episodes_one_by_one(name):
    support, targets, query = make_episodes(count=8, way=5, shot=5, width=16, dtype=torch.float32)
    head = create_head(name)
    together = head(support, targets, query, 5)
    one_by_one = [head(support[i : i + 1], targets[i : i + 1], query[i : i + 1], 5) for i in range(8)]
    torch.testing.assert_close(together, torch.cat(one_by_one), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_every_head_learns_through_its_support_set(name):
    support, targets, query = make_episodes(way=3, shot=3)
    moving = support.clone().requires_grad_()
    wanted = torch.zeros(3, 5, dtype=torch.int64)
    loss = smoothed_cross_entropy(create_head(name).double()(moving, targets, query, 3), wanted)
    loss.backward()
    step = torch.randn_like(support)
    ends = [
        float(
            smoothed_cross_entropy(create_head(name).double()(support + t * step, targets, query, 3), wanted)
        )
        for t in (1e-4, -1e-4)
    ]
    assert float((moving.grad * step).sum()) == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-3, abs=1e-8)


@pytest.mark.parametrize("name", HEADS)
def test_unequal_shots_are_used_as_they_are(name):
    support, _, query = make_episodes(count=1, way=2, shot=3)
    targets = torch.tensor([[0, 0, 0, 0, 1, 1]])
    logits = create_head(name).double()(support, targets, query, 2)
    order = torch.tensor([5, 3, 1, 0, 4, 2])
    shuffled = create_head(name).double()(support[:, order], targets[:, order], query, 2)
    torch.testing.assert_close(logits, shuffled, rtol=1e-6, atol=1e-9)


def test_smoothing_gives_the_others_their_share_and_the_class_the_rest():
    logits, targets = (
        torch.randn(6, 5, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 1, 2, 3, 4, 0]),
    )
    total = 0.0
    for row, label in zip(logits.log_softmax(1), targets, strict=True):
        total -= sum(float(row[k]) * (0.9 if k == label else 0.1 / 4) for k in range(5))
    assert float(smoothed_cross_entropy(logits, targets, 0.1)) == pytest.approx(total / 6, rel=1e-5)
    assert float(smoothed_cross_entropy(logits.view(2, 3, 5), targets.view(2, 3))) == pytest.approx(
        float(nn.functional.cross_entropy(logits, targets))
    )


def test_what_is_no_episode_is_refused():
    support, targets, query = make_episodes()
    head = create_head("protonet").double()
    refused("7 and 6 features: their images differ in size", head, support, targets, query[..., :6], 4)
    refused("class 4 of episode 0 has no support image", head, support, targets, query, 5)
    refused("from 0 to 3 but there are 3 classes", head, support, targets, query, 3)
    refused("at least two classes, not 1", head, support, torch.zeros_like(targets), query, 1)
    refused(r"must be \(E, S, D\) and \(E, Q, D\)", head, support[0], targets, query, 4)


def test_names_and_options_are_checked_and_self_distillation_has_its_reason():
    refused("did you mean 'protonet'", create_head, "protonets")
    for name in ("sla+sd", "ridge+sd"):
        refused("an episode's classes are new ones", create_head, name)
    refused("'ridge' has no option 'c'", create_head, "ridge", c=1.0)
    refused("above 0, not -1", create_head, "ridge", regularization=-1.0)
    refused("its options are numbers", create_head, "ridge", regularization="much")
