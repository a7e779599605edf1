"""What the proxy tells of itself: metrics, spans, logs; each is a `Recorder`, none holds a request up."""
