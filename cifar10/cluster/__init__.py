"""The processes of a cluster: addresses, connections, and the role of this process."""
