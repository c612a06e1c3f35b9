"""The one loop: collect, coach, shape, estimate, update, publish, keep."""
