package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/daemon"
)

// How `fabricd run --explain` prints.
const (
	explainTable = "table"
	explainJSON  = "json"
)

// An explained is a setting as `fabricd run --explain=json` prints it.
type explained struct {
	Key      string `json:"key"` // of the flag and of the file
	Variable string `json:"variable"`
	Value    string `json:"value"`
	Source   string `json:"source"`
	Default  string `json:"default"`
	Allowed  string `json:"allowed"`
	Usage    string `json:"usage"`
}

// explain prints the value of each setting of cmd, and its source.
func (a *app) explain(cmd *cobra.Command, file, how string) error {
	if how != explainTable && how != explainJSON {
		return usageError{fmt.Errorf("explain: %q; want table or json", how)}
	}
	_, all, err := daemon.Explain(a.configFile(file), a.environ, changed(cmd))
	if err != nil {
		return err
	}
	def := daemon.Default()
	if how == explainTable {
		t := table{{"SETTING", "VALUE", "SOURCE", "ALLOWED"}}
		for _, e := range all {
			t = append(t, []string{e.Key, e.Value, e.Source, e.Allowed})
		}
		return t.print(a.stdout)
	}
	var list []explained
	for _, e := range all {
		list = append(list, explained{e.Key, e.Env(), e.Value, e.Source, e.Setting.Value(def), e.Allowed, e.Usage})
	}
	return json.NewEncoder(a.stdout).Encode(list)
}
