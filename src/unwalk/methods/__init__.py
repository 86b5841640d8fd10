"""Methods: what one visit does to the token.  One file a method, no tensors in any of them."""
