"""Submissions: read, checked, aligned with the truth, graded each by its task's own metric."""
