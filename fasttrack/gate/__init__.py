"""The answer for CI: may this change go in, by rules that the change cannot touch.

`evidence` judges result files, `change` what a diff demands of them, `waiver` what a maintainer
sets aside; `page` writes it down. Exit status: 0 all demands met, 1 a rule of the claim is broken,
3 inconclusive or not admissible, 6 a file cannot be trusted; the worst finding decides, 6 before 1
before 3 before 0.
"""
