"""Other packages' interfaces to memory that sleeps, over `ravenstore.regions`."""
