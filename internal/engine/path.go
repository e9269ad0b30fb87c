package engine

// A route is the path of an endpoint's messages to its application.
type route struct{ path, why string }

// Via records the path of the endpoint's messages, for operators.
func (e *endpoint) Via(path, why string) { e.route.Store(&route{path, why}) }

func (e *endpoint) path() (path, why string) {
	if r := e.route.Load(); r != nil {
		return r.path, r.why
	}
	return "call", ""
}

// Pair returns keys that identify this end of a connection, and its other end, within
// the node. It reports false unless both are here.
func (e *endpoint) Pair() (self, peer any, ok bool) {
	c := e.lastConn()
	if c == nil {
		return nil, nil, false
	}
	otherEnd := c.otherEnd.Load()
	return c, otherEnd, otherEnd != nil
}
