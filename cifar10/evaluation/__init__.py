"""A trained model: evaluated during a run or beside it, used to classify images, exported."""
