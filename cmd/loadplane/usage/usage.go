// Package usage has what the commands share of a command line: which arguments
// they take, and which words their flags do.
package usage

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Group refuses words after a command that only has commands below it: the
// error names those that are like the first word.
func Group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return errors.New(text)
}

// One wants the one argument that the usage line of a command names, and shows
// that line where there is another number of them.
func One(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want one argument, not %d: %s", len(args), cmd.UseLine())
	}
	return nil
}

// Complete adds the words that a flag of the command takes to the completion.
// It panics for a flag that the command does not have.
func Complete(cmd *cobra.Command, flag string, words []string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic("usage: " + err.Error())
	}
}

// Words returns named things as words.
func Words[T ~string](things []T) []string {
	words := make([]string, len(things))
	for i, t := range things {
		words[i] = string(t)
	}
	return words
}
