"""The names of variables, as checkpoints have them, and of a collection, that more than one room must know."""
EXAMPLES_SEEN = 'examples_seen'  # counts examples: the position of the next one
LOSS_SCALE = ('current_loss_scale', 'good_steps')  # those that a precision with a loss scale adds
AVERAGE = '/ExponentialMovingAverage'  # follows the name of a variable in that of its moving average
# The graph collection of (variable, value, keep) triples: what a network learns without gradients.
MOVING_STATISTICS = 'moving_statistics'
# The last parts of the names of the state of the averages in `local`.
START, VELOCITY, AVERAGED_AT = OUTER_STATE = ('LocalStart', 'LocalVelocity', 'local_averaged_at')
