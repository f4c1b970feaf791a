package main

import (
	"fmt"
	"reflect"
	"regexp"
	"time"

	"github.com/loadplane/loadplane/service"
	"github.com/loadplane/loadplane/service/config"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

func (a *app) checkConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check-config",
		Short: "Check a configuration and print the one in force",
		Long: `Read the configuration as serve does, with the files that it names (workers,
certificates, tokens), and print what is in force as YAML. No listener is
bound and nothing is sent. Secrets are not shown.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(cmd.Flags(), a.environ)
			if err != nil {
				return err
			}
			return a.checkConfig(cfg)
		},
	}
	config.RegisterFlags(cmd.Flags())
	return cmd
}

func (a *app) checkConfig(cfg config.Config) error {
	if err := service.Check(cfg); err != nil {
		return err
	}
	doc, err := configYAML(cfg)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.out, "# The configuration is good. In force:\n%s", doc)
	return err
}

// configYAML prints cfg in the order of its fields, as a file that serve
// reads.
func configYAML(cfg config.Config) ([]byte, error) {
	doc := &yaml.Node{Kind: yaml.MappingNode}
	v := reflect.ValueOf(cfg)
	for f := range v.Type().Fields() {
		value := &yaml.Node{}
		if err := value.Encode(shown(v.FieldByIndex(f.Index).Interface())); err != nil {
			return nil, err
		}
		doc.Content = append(doc.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: f.Tag.Get("koanf")}, value)
	}
	return yaml.Marshal(doc)
}

func shown(v any) any {
	switch v := v.(type) {
	case time.Duration:
		return v.String()
	case []string:
		list := make([]string, len(v))
		for i, s := range v {
			list[i] = redactURL(s)
		}
		return list
	default:
		return v
	}
}

// userinfo is the part of a URL that may hold a password.
var userinfo = regexp.MustCompile(`//[^/?#\s]*@`)

func redactURL(s string) string { return userinfo.ReplaceAllString(s, "//REDACTED@") }
