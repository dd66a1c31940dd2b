"""The paper's tables and figures, and studies of our own, by name; imports nothing, for the command line."""

PAPER = {
    "toy": "Figure 2: linear classifiers on digits that look alike when rotated",
    "table1": "Table 1: single inference by DA, MT and SLA",
    "figure3": "Figure 3: training curves of DA, MT and SLA",
    "table2": "Table 2: one model against an ensemble of four",
    "table3": "Table 3: all datasets, rotation and colour permutation",
    "table4": "Table 4: composed transformations on CUB200",
    "table5": "Table 5: strong augmentation and large networks",
    "table6": "Table 6: few-shot classification",
    "table7": "Table 7: imbalanced data",
    "figure4": "Figure 4: fewer training images",
    "table8": "Table 8: ten-crop against aggregation",
    "table9": "Table 9: composed transformations, single and aggregated",
    "table10": "Table 10: thousands of labels",
    "table11": "Table 11: after SimCLR pre-training",
}

STUDIES = {  # not in the paper: studies.yaml
    "pilots": "Pilots: width and steps of the small scale, on seeds that no table has",
    "networks": "Networks for small pictures: accuracy against seconds, on held-out images",
    "views": "Views per step: accuracy against training FLOP",
    "short-pilots": "Views for runs too short for four: on held-out images",
    "student-pilots": "Students in one pass: candidates, on held-out images",
    "students": "Students in one pass: the winner, against the baseline of the same cost",
    "rivals": "Rivals of SLA at the same training cost",
    "capacity": "Capacity: the gain of joint labels against the width of the network",
    "fast-pilots": "The fast recipe: its choices, on held-out images",
    "fast": "Time to accuracy: the fast recipe, plain labels and the paper's recipe in the same minutes",
    "grow-pilots": "Growth: its settings, on held-out images",
    "grow": "Growth: classes that come later, 20 and then 4 times 5",
    "fewshot-pilots": "Few-shot: rates and network of the small scale, on validation classes",
    "semi-pilots": "Images without labels: weights and confidence, on held-out images",
    "semi": "Semi-supervised: few labels, and images without labels",
}

EXPERIMENTS = PAPER | STUDIES
