"""The processes of a cluster: who they are, whether they can be reached, and this process's part."""
