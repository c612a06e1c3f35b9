"""What agents call: calls found in a reply, the tools that answer them, the folder they work in and its lineage."""
