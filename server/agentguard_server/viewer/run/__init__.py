"""What the page of a run shows, as plain values: no request and no template in here."""
