"""The processes of a cluster: their addresses, whether they can be reached, and what this process does among them."""
