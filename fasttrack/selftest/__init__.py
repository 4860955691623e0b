"""The self-test: does this harness, as installed here, refuse cheats and accept honest work?

The zoo is a folder per plant (`catalogue`); each is judged by the very stages, children and rules
that judge a submission (`plants`); `run` counts. The counts enter every bundle.
"""
