package daemon

import "net/http"

// operateRoutes adds the routes that only a whole node answers: its log, its state.
func (a *admin) operateRoutes(mux *http.ServeMux) {
	if s, ok := a.subject.(backuper); ok {
		a.backupRoute(mux, s)
	}
	if s, ok := a.subject.(debugger); ok {
		a.debugRoute(mux, s)
	}
	if s, ok := a.subject.(logSubject); ok {
		a.logRoutes(mux, s)
	}
}
