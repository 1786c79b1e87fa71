"""The processes of a cluster: their addresses, whether they can be reached, and the part of this process."""
