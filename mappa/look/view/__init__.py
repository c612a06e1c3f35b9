"""Reports and pages for people: the report of a run, the page of a sweep, and the live viewer."""
