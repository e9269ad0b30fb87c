package transport

// Attributes describe all of a provider's sessions. They do not change.
type Attributes struct {
	// Encrypted: no host on the path can read or change a byte of any stream.
	Encrypted bool `json:"encrypted"`
	// Datagrams overtake queued bytes of streams. If false, they wait like those.
	Datagrams bool `json:"datagrams"`
}
