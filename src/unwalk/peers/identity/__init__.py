"""Who the peers are: keys, certificates, signatures and the network file."""
