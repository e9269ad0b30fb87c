//go:build !linux

package main

import (
	"errors"

	"github.com/spf13/cobra"
)

func (a *app) relayProcess() *cobra.Command {
	return &cobra.Command{Use: relayCommand, Hidden: true, RunE: func(*cobra.Command, []string) error { return errors.New("a way needs Linux") }}
}
