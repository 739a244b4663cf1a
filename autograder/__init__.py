"""All that a learner imports: check, hint and progress."""

from autograder.learn import check, hint, progress

__all__ = ["check", "hint", "progress"]
__version__ = "0.1.0"
