"""Data-parallel training of a CIFAR-10 network in TensorFlow's graph mode.

A file here imports only files above it in this list:

    console      one-line errors, exit statuses, a quiet start of TensorFlow
    config       the settings of a run, checked once
    flags        a config class as a command line
    download     a file from the network, verified before it gets its name
    shapes       the built-in data set
    records      CIFAR binary files: find, verify, count
    inputs       positions -> augmented batches
    networks     inference(images)
    schedule     learning-rate decay, moving averages
    devices      which devices the towers get
    listener     a port that is closed on all addresses but one
    slurm        a Slurm step as a cluster
    membership   who is in a cluster
    peers        which other processes can be reached
    member       this process's part in a cluster: its server, one end for all
    precision    the type that towers compute in, and the loss scale of fp16
    towers       build_towers, tower_loss, average_gradients
    packing      small gradients travel as one
    updates      how the towers' gradients become an update of the variables
    replicated   a copy of the variables on each device, gradients all-reduced
    asynchronous each tower updates as soon as it can
    mirrored     tf.distribute.MirroredStrategy
    modes        the table of update modes
    run_dir      what lies in a train_dir or eval_dir, and whose it is
    checkpoint   saving, resuming, reading a checkpoint of the tutorial
    summaries    what TensorBoard shows of a step
    hooks        what happens between two steps
    profile      a trace of some steps
    training     the training graph and its loop
    evaluation   the evaluation graph and its passes
    local_cluster a cluster of processes on this machine
"""
