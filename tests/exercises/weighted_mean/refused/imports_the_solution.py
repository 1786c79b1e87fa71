# refused: imports the solution; write your own
from lessons.solutions.split_batch import weighted_mean  # noqa: F401
