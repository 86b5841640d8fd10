"""What a peer has on disk: its state and its tokens, durable."""
