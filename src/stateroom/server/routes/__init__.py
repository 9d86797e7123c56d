"""What can be asked over HTTP, one file per noun. Each ends in its `ENDPOINTS`."""
