"""HTTP resources; each module ends with its part of the route table."""
