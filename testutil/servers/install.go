package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/onelane/onelane/testutil/internal/server"
)

// install installs the kinds that are not there yet. If it may not or cannot, the error says what
// to install.
func install(ctx context.Context, kinds []server.Kind, may, verbose bool, stderr io.Writer) error {
	missing, err := lookUp(kinds)
	if err != nil || len(missing) == 0 {
		return err
	}
	manager, found := packageManager()
	if !may || !found {
		return advice(missing, may, false)
	}
	if err := manager.install(ctx, missing, verbose, stderr); err != nil {
		return fmt.Errorf("%w\n%w", err, advice(missing, may, true))
	}
	if missing, err = lookUp(kinds); err == nil && len(missing) > 0 {
		err = advice(missing, may, true)
	}
	return err
}

func lookUp(kinds []server.Kind) (missing []server.Kind, _ error) {
	for _, kind := range kinds {
		_, err := server.Find(kind)
		if _, ok := errors.AsType[*server.MissingError](err); ok {
			missing = append(missing, kind)
		} else if err != nil {
			return nil, err
		}
	}
	return missing, nil
}

// advice says what to do about the kinds that are missing. tried says that they could not be
// installed from here.
func advice(missing []server.Kind, may, tried bool) error {
	var text strings.Builder
	for _, kind := range missing {
		fmt.Fprintf(&text, "%v\n", &server.MissingError{Kind: kind})
	}
	switch {
	case tried:
		text.WriteString("They could not be installed from here: look at what -v shows, or install them by hand. ")
	case may:
		text.WriteString("It can be installed from here as root with apt-get, or with Homebrew; neither is at hand. ")
	default:
		text.WriteString("Leave out -no-install to have it installed from here (as root with apt-get, or with Homebrew). ")
	}
	text.WriteString("To do without some servers, name the others with -only")
	return errors.New(text.String())
}
