"""What earlier failures taught: error schemata, distilled, retrieved and kept up to date."""
