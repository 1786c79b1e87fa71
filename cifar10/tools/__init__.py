"""Tools that look at a run: check it, explain where its time goes, replay a step, show its inputs."""
