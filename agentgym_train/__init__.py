"""A thin trainer: token-level policy gradients over text environments, with a horizon curriculum."""
