"""Coaching by models: what a coach is shown, what it is asked, and what becomes of its answer."""
