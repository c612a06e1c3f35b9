"""Reports on stored runs: grades, and faults before and after training."""
