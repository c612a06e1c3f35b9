"""What stored runs tell: how they were graded, and what agents stopped doing."""
