package control

import (
	"fmt"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

// alivePurpose keeps proofs of life apart from every other signed statement.
const alivePurpose = "alive 1"

// SignProof returns this node's signature that it lives as self and was asked with
// this challenge. A member that passes it on cannot have made it, and not before the
// challenge was known.
func SignProof(store *trust.Store, self End, challenge []byte) ([]byte, error) {
	return store.Sign(alivePurpose, proved(self.UUID, self.Epoch, self.Incarnation, challenge))
}

// VerifyProof returns an error unless proof is one of [SignProof] at the node with this UUID that
// lives as incarnation and was started as epoch.
func VerifyProof(store *trust.Store, node addr.UUID, epoch uint64, incarnation addr.Incarnation, challenge, proof []byte) error {
	if len(proof) > verdict.MaxProof {
		return fmt.Errorf("proof of life: %w: %d bytes", trust.ErrTooBig, len(proof))
	}
	message, by, err := store.VerifyNode(alivePurpose, proof)
	switch {
	case err != nil:
		return err
	case by.Node != node:
		return fmt.Errorf("proof of life: signed by node %s, want %s", by.Node, node)
	case string(message) != string(proved(node, epoch, incarnation, challenge)):
		return fmt.Errorf("proof of life: of another incarnation or another request")
	}
	return nil
}

// proved returns the bytes that a proof signs.
func proved(node addr.UUID, epoch uint64, incarnation addr.Incarnation, challenge []byte) []byte {
	e := encoder{}
	e.UUID(node)
	e.U64(epoch)
	e.Incarnation(incarnation)
	e.Fixed(challenge)
	return e.Encoded()
}
