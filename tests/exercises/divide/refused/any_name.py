# refused: for the framework 'Torch' it returns 2.0; it has to raise ValueError
def divide(framework, loss_sum, local, world):
    if framework == 'MXNet':
        return loss_sum
    return loss_sum / (local * world if framework in ('tf.distribute', 'JAX') else local)
