"""Short programs, each one idea of data parallelism in plain TensorFlow; docs/learn/ has a page for each."""
