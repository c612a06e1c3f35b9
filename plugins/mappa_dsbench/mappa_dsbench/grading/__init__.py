"""Grading: submissions are read, checked, aligned with the truth and graded by the task's metric."""
