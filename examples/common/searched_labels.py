"""Labels as the encoder sees them: what a search for hard negatives may read in place of class vectors."""

import tfxc

LABEL = "label-"  # the start of a sampler's name


def encoded_labels(model, train, batch_size=256):
    """A function that gives what the encoder, as it is then, makes of every label [L, D]."""
    batches = tfxc.data.classification_dataset(train.of_labels(), batch_size, seed=None)
    return lambda: model.encoder.predict(batches, verbose=0)
