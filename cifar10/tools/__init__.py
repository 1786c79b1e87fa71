"""Tools that look at a training without doing it: check it, explain where its time goes."""
