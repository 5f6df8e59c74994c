"""The way of a batch: inputs, query, draw, scores, loss; and out of the house again."""
