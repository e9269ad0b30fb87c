package transport

// Attributes say what all of a provider's sessions can do. They do not change.
type Attributes struct {
	// Encrypted: nobody on the way can read or change a byte of any lane.
	Encrypted bool `json:"encrypted"`
	// Datagrams pass what waits on lanes. Without, they arrive as lanes do.
	Datagrams bool `json:"datagrams"`
}
