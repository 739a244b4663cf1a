"""Where the learner's code runs when it is graded, and the plain format that comes out."""
