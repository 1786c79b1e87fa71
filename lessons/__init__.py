"""Seven short programs, each one idea of data parallelism in plain TensorFlow; docs/learn.md tells the story."""
