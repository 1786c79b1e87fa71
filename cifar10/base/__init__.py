"""Shared modules for all rooms: errors, output, registered names, files and folders, signals, users' code."""
