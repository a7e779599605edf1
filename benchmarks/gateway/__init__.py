"""A comparison of gateways: what each costs a request, beside each other on one machine."""
