"""Why a rank was late, followed to where it began."""
