package client

import (
	"context"

	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/rma"
)

func (e *endpoint) PostAtomic(a rma.Atomic) error {
	if p := e.far.path.Load(); p != nil {
		if done, err := p.postAtomic(a); done {
			return err
		}
	}
	if _, done := e.direct.atomic(context.Background(), a); done {
		return nil
	}
	return e.nodePost(a)
}

// nodePost is PostAtomic through the node, which answers before the atomic is performed.
func (e *endpoint) nodePost(a rma.Atomic) error {
	return e.direct.through(true, func() error {
		return usePad(func(p *pad) error {
			p.atomic = proto.AtomicBody(a)
			return e.ask(context.Background(), proto.OpPostAtomic, &p.atomic, nil)
		})
	})
}
