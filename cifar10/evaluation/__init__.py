"""What is done with a trained model: evaluation during a run or beside it, classification, export."""
